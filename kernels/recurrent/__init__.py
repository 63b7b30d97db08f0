"""The rules of `rnn`, `lstm`, `gru` and `lstm_cell`, a driver a device; the folders hold the texts of their kernels."""
