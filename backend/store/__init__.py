"""The kernel store: compiled kernels kept between processes."""
