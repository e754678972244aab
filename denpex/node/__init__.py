"""What runs on compute nodes: standard library and pynvml only."""
