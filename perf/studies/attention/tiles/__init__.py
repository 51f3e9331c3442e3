"""Which tiles our kernels are fastest in on this GPU, and how far the tables are from them."""
