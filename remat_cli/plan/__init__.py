"""The plan: its type and file format, lowering, placement, check, diff."""
