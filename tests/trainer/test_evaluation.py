"""Greedy decoding of held-out prompts, and the text that reward functions see."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from grpo_trainer import evaluation
from grpo_trainer.dataset import as_examples
from grpo_trainer.evaluation import evaluate
from grpo_trainer.model_source import LoadedModel, load_model
from grpo_trainer.prompts import EncodedPrompt, encode_prompts
from grpo_trainer.rewards.batch import RewardBatch
from grpo_trainer.rewards.types import RewardScores
from grpo_trainer.rollout import Completion, Interrupted, SamplingOptions, decode_greedily
from grpo_trainer.scoring import batch_for_rewards, completion_text
from tiny_model import EOS_ID, make_model, tiny_model

ROWS = [{"prompt": f"{'x' * n} + {n}", "answer": str(n)} for n in range(1, 10)]
SAMPLING = SamplingOptions(max_tokens=6)


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model(str(tiny_model()), lambda message: None)


@pytest.fixture(scope="module")
def prompts(loaded: LoadedModel) -> list[EncodedPrompt]:
    return encode_prompts(as_examples(ROWS), loaded.tokenizer)


class Scorer:
    """Scores a row by its answer; rows of odd numbers abstain."""

    def __init__(self) -> None:
        self.names, self.weights = ["even"], [1.0]
        self.batches: list[RewardBatch] = []

    def score(self, batch: RewardBatch) -> RewardScores:
        self.batches.append(batch)
        scores = [float(a) if int(a) % 2 == 0 else None for a in batch.columns["answer"]]
        return RewardScores(total=scores, per_function={"even": scores}, names=self.names)

    def check(self, examples: Sequence[Any]) -> None: ...

    def close(self) -> None: ...


def run(
    loaded: LoadedModel, prompts: list[EncodedPrompt], **options: Any
) -> tuple[Any, Scorer, list[tuple[int, int]]]:
    scorer, progress = Scorer(), []
    event = evaluate(
        loaded.model,
        loaded.tokenizer,
        prompts,
        scorer,
        options.get("sampling", SAMPLING),
        step=7,
        on_progress=lambda done, total: progress.append((done, total)),
        should_stop=options.get("should_stop", lambda: False),
    )
    return event, scorer, progress


def test_means_leave_out_rows_that_abstain(
    loaded: LoadedModel, prompts: list[EncodedPrompt]
) -> None:
    event, scorer, _ = run(loaded, prompts)
    assert (event.step, event.num_prompts) == (7, 9)
    assert event.metrics["eval/reward"] == 5.0
    assert event.metrics["eval/rewards/even/mean"] == 5.0
    assert event.metrics["eval/completions/mean_length"] == 6.0
    assert event.metrics["eval/completions/clipped_ratio"] == 1.0
    (batch,) = scorer.batches
    assert batch.columns["answer"] == [row["answer"] for row in ROWS]
    assert batch.prompts == [row["prompt"] for row in ROWS]


def test_without_any_score_the_mean_is_unknown(
    loaded: LoadedModel, prompts: list[EncodedPrompt]
) -> None:
    event, *_ = run(loaded, prompts[:1])
    assert event.metrics["eval/reward"] is None


def test_batches_change_no_completion_and_tell_their_progress(
    loaded: LoadedModel, prompts: list[EncodedPrompt], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, whole, _ = run(loaded, prompts)
    monkeypatch.setattr(evaluation, "EVAL_BATCH", 2)
    _, cut, progress = run(loaded, prompts)
    assert cut.batches[0].completion_ids == whole.batches[0].completion_ids
    assert progress == [(0, 9), (2, 9), (4, 9), (6, 9), (8, 9)]


def test_decoding_is_greedy(loaded: LoadedModel, prompts: list[EncodedPrompt]) -> None:
    _, scorer, _ = run(loaded, prompts)
    best = decode_greedily(loaded.model, [p.token_ids for p in prompts], SAMPLING)
    assert scorer.batches[0].completion_ids == [c.token_ids for c in best]


def test_STOP_is_heard(loaded: LoadedModel, prompts: list[EncodedPrompt]) -> None:
    with pytest.raises(Interrupted):
        run(loaded, prompts, should_stop=lambda: True)


# --- the text that rewards see


def test_rows_of_a_batch_line_up(loaded: LoadedModel, prompts: list[EncodedPrompt]) -> None:
    completions = [Completion([40 + n, EOS_ID], "stop") for n in range(6)]
    batch = batch_for_rewards(prompts[:2], 3, completions, loaded.tokenizer, 4)
    assert batch.prompts == [ROWS[0]["prompt"]] * 3 + [ROWS[1]["prompt"]] * 3
    assert batch.columns == {"answer": ["1"] * 3 + ["2"] * 3}
    assert batch.completion_ids == [c.token_ids for c in completions]
    assert batch.finish_reasons == ["stop"] * 6
    assert batch.step == 4


def test_M15_the_text_has_no_terminator(loaded: LoadedModel) -> None:
    ids = loaded.tokenizer.encode("42", add_special_tokens=False)
    assert completion_text(Completion([*ids, EOS_ID], "stop"), loaded.tokenizer) == "42"
    assert completion_text(Completion(ids, "length"), loaded.tokenizer) == "42"


def test_M15_a_terminator_that_is_no_special_token_is_none_of_the_text_either(
    tmp_path: Path,
) -> None:
    """Some generation configs end a completion at an ordinary token."""
    folder = make_model(tmp_path / "model")
    settings = json.loads((folder / "tokenizer.json").read_text())
    plain = next(t for t in settings["added_tokens"] if not t["special"])
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [plain["id"]]}))
    tokenizer = load_model(str(folder), lambda message: None).tokenizer
    ids = tokenizer.encode("42", add_special_tokens=False)
    assert completion_text(Completion([*ids, plain["id"]], "stop"), tokenizer) == "42"
    inside = Completion([plain["id"], *ids], "length")
    assert plain["content"] in completion_text(inside, tokenizer)


def test_M16_ids_that_are_no_text_become_replacement_marks(loaded: LoadedModel) -> None:
    half = loaded.tokenizer.encode("🙂", add_special_tokens=False)[:2]
    assert "\ufffd" in completion_text(Completion(half, "length"), loaded.tokenizer)
