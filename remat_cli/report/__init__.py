"""Tables for people: pure functions of plans, profiles and timelines."""
