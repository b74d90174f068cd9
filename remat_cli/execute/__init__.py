"""Plan + model -> running it: the arena engine and its measured peak."""
