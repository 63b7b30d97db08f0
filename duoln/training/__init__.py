"""How a task becomes a run: the train step as a pure function, the trainer with its state, and the loop around it."""
