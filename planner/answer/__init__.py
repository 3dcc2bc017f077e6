"""What the planner answers: placements, what they are predicted to do, and outcomes."""
