"""What runs ahead of a program: compiling its kernels, and timing the picks for its problems."""
