"""A fuzzer that plays the other end of a pipe, and does with its memory what it likes."""
