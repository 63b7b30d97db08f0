"""The training of a task: the training step as a pure function, the trainer with its state, and the training loop."""
