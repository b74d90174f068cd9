"""ONNX file -> Graph: loading, dims, shapes, sizes, views, hashing, and the models of single nodes."""
