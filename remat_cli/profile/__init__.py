"""Graph + device -> Profile: measured node costs, or an analytic roofline cost model."""
