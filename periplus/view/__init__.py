"""What a person sees of a job: a pure fold of events into a ViewState, and its renderings."""
