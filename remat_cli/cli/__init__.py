"""Commands: parse, call, print. The only error boundary, and the only user of rich."""
