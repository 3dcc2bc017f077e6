"""What a rank says of the error that ends it: in its own words, with advice if memory was short."""

from periplus.errors import explained_error, shortened

MAX_CHARACTERS = 600
"""Most characters of the text about one error. Some errors of torch hold pages of native frames. Chosen by hand."""

ADVICE = "lower train.micro_batch_samples or raise train.devices"


def explained_failure(error: BaseException) -> str:
    """Return the text about an error in one line. An error for want of memory is named as one, with advice."""
    text = shortened(" ".join(explained_error(error).split()), MAX_CHARACTERS)
    return f"out of memory ({text}); {ADVICE}" if is_out_of_memory(error) else text


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory could not be allocated, on an accelerator or in the host."""
    # torch raises OutOfMemoryError for accelerators, and a plain RuntimeError for the host's memory.
    names = {each.__name__ for each in type(error).__mro__}
    return bool(names & {"MemoryError", "OutOfMemoryError"}) or "DefaultCPUAllocator" in str(error)
