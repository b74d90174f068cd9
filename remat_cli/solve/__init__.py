"""Problem -> Solution: one module a method, a registry, the `auto` portfolio."""
