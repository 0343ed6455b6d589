"""Many islands in one process over a loopback transport, with the same outer code as the trainer."""
