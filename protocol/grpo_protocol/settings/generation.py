"""How completions are sampled and when they end."""

from typing import Annotated

import msgspec
from msgspec import Meta

from grpo_protocol.settings.kinds import Count, Fraction, Interval, Positive, Proportion, key
from grpo_protocol.settings.loss import LossSettings

Penalty = Annotated[float, Meta(ge=-2, le=2)]


class GenerationSettings(LossSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Group `Generation`."""

    max_completion_length: Annotated[
        Count, key("Generation", "Tokens after which a completion is cut.")
    ] = 256
    temperature: Annotated[
        Positive,
        key("Generation", "Divides the logits, in sampling and in the loss alike.", live=True),
    ] = 0.8
    top_k: Annotated[
        Interval, key("Generation", "Sample from the k likeliest tokens; 0 for all.")
    ] = 0
    top_p: Annotated[
        Proportion,
        key("Generation", "Sample from the fewest tokens with this probability; 1 for all."),
    ] = 1.0
    min_p: Annotated[
        Fraction,
        key("Generation", "Drop tokens below this share of the likeliest one's probability."),
    ] = 0.0
    repetition_penalty: Annotated[
        Positive,
        key("Generation", "Divides positive and multiplies negative logits of recent tokens."),
    ] = 1.0
    repetition_context_size: Annotated[
        Count, key("Generation", "Tokens that `repetition_penalty` looks back on, prompt included.")
    ] = 256
    presence_penalty: Annotated[
        Penalty, key("Generation", "Taken off the logit of each token that occurred recently.")
    ] = 0.0
    presence_context_size: Annotated[
        Count, key("Generation", "Tokens that `presence_penalty` looks back on, prompt included.")
    ] = 20
    frequency_penalty: Annotated[
        Penalty,
        key("Generation", "Taken off the logit of a token for each of its recent occurrences."),
    ] = 0.0
    frequency_context_size: Annotated[
        Count, key("Generation", "Tokens that `frequency_penalty` looks back on, prompt included.")
    ] = 20
    stop: Annotated[
        list[str], key("Generation", "Texts that end a completion, besides its end tokens.")
    ] = msgspec.field(default_factory=list)
    max_consecutive_tokens: Annotated[
        Interval, key("Generation", "Equal tokens in a row that end a completion; 0 for no limit.")
    ] = 16
    max_ngram_repeats: Annotated[
        Interval,
        key("Generation", "Repeats of a short pattern that end a completion; 0 for no limit."),
    ] = 8
    ngram_size: Annotated[
        Annotated[int, Meta(ge=2)],
        key("Generation", "Longest pattern whose repeats `max_ngram_repeats` counts, in tokens."),
    ] = 3
