"""What the recurrent operators' rules share, and their rule on MLX, which is one for all cells."""
