"""Search of our kernels' fastest tiles on this GPU, and the distance of the tables from them."""
