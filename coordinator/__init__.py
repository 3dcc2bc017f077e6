"""The coordinator: the control plane. It knows regions, jobs and plans, and never touches bulk data."""
