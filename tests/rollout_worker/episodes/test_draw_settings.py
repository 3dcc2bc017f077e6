from periplus.environment.completions import CompletionDecoder
from periplus.job.job_file import SamplingSection
from periplus.job.sampling_section import EvalSampling
from rollout_worker.episodes.draw_settings import evaluation_draws, training_draws
from rollout_worker.episodes.episode import DrawSettings
from tests.support.episodes import Letters

DECODER = CompletionDecoder(tokenizer=Letters())
TRAINING = SamplingSection(temperature=0.7, max_new_tokens=9)


def test_an_evaluation_is_greedy_and_as_long_as_training_unless_it_says_otherwise() -> None:
    assert training_draws(TRAINING, DECODER) == DrawSettings(temperature=0.7, max_new_tokens=9)
    assert evaluation_draws(TRAINING, EvalSampling(), DECODER) == DrawSettings(temperature=0.0, max_new_tokens=9)
    own = EvalSampling(temperature=0.6, top_p=0.95, top_k=20, min_new_tokens=2, max_new_tokens=5)
    assert evaluation_draws(TRAINING, own, DECODER) == DrawSettings(
        temperature=0.6, top_p=0.95, top_k=20, min_new_tokens=2, max_new_tokens=5
    )


def test_stop_strings_of_training_hold_in_evaluation_unless_it_has_its_own() -> None:
    sampling = SamplingSection(stop=("END",))
    training = training_draws(sampling, DECODER).stop
    same = evaluation_draws(sampling, EvalSampling(min_new_tokens=3), DECODER).stop
    own = evaluation_draws(sampling, EvalSampling(stop=("a", "b")), DECODER).stop
    assert training is not None
    assert same is not None
    assert own is not None
    assert (training.texts, training.min_new_tokens) == (("END",), 0)
    assert (same.texts, same.min_new_tokens) == (("END",), 3)
    assert own.texts == ("a", "b")
    assert evaluation_draws(sampling, EvalSampling(stop=()), DECODER).stop is None


def test_stop_strings_have_a_tokenizer_of_their_own() -> None:
    """Engines decode in their own threads, while the worker encodes prompts."""
    strings = training_draws(SamplingSection(stop=("END",)), DECODER).stop
    assert strings is not None
    assert strings._decoder.tokenizer is not DECODER.tokenizer
