"""One completion and its group as blocks of text, for the preview and for the whole screen."""

from collections.abc import Sequence
from statistics import fmean, pstdev, stdev

from textual.content import Content

from grpo_tui.drawing.formatting import number
from grpo_tui.drawing.wrapping import Block
from grpo_tui.state.samples import Sample

HEADING = "bold $text-primary"
DIM = "$foreground 60%"
THINKING = "italic $foreground 70%"


def group_name(sample: Sample) -> str:
    """`A.3`: prompt A of the step, completion 3 of its group."""
    prompt = sample.prompt_index
    name = chr(ord("A") + prompt) if 0 <= prompt < 26 else f"{prompt}"
    return f"{name}.{sample.group_index}"


def finish_word(sample: Sample) -> str:
    """`stop`, or a word in capitals for what was cut."""
    reason = sample.finish_reason
    if reason is None:
        return "-"
    return {"stop": "stop", "length": "LEN", "repetition": "REP"}.get(reason, reason[:4])


def title_line(sample: Sample) -> Content:
    """Step, group, reward and that of each function before weights, advantage, size, end."""
    parts = " ".join(f"{name} {number(value, 2)}" for name, value in sample.rewards.items())
    pieces: list[str | tuple[str, str]] = [
        (f"step {sample.step} {group_name(sample)}", HEADING),
        "  reward ",
        (number(sample.reward, 2), "bold"),
        (f" ({parts})" if parts else "", DIM),
    ]
    if sample.advantage is not None:
        pieces.append(f" adv {sample.advantage:+.2f}")
    pieces.append(f" {sample.tokens} tok {finish_word(sample)}")
    return Content.assemble(*pieces)


def group_line(
    sample: Sample, group: Sequence[Sample], size: int | None, width: int = 10_000
) -> str:
    """Rewards of all answers to this prompt in this step, with mean and spread.

    Advantages stand beside them where `width` has room. When fewer than all `size` answers were
    sent, their mean would not be the one that the advantages come from, and is left out.
    """
    rewards = [member.reward for member in group if member.reward is not None]
    if not rewards:
        return "no rewards in this group"
    spread = stdev(rewards) if len(rewards) > 1 else pstdev(rewards)
    flat = ", no spread: no gradient" if spread == 0 and len(rewards) > 1 else ""
    head = f"mean {number(fmean(rewards))} std {number(spread)}{flat} "
    if size is not None and len(group) < size:
        head = f"{len(group)} of {size} answers were sent "
    full = head + _members(sample, group, advantages=True)
    return full if len(full) <= width else head + _members(sample, group, advantages=False)


def _members(sample: Sample, group: Sequence[Sample], *, advantages: bool) -> str:
    cells = []
    for member in group:
        text = number(member.reward, 2)
        if advantages and member.advantage is not None:
            text += f"({member.advantage:+.2f})"
        cells.append(f"[{text}]" if member.number == sample.number else text)
    return " " + " ".join(cells)


def body_blocks(sample: Sample, *, compact: bool = False) -> list[Block]:
    """Prompt and completion; with `compact` no blank lines and no headings of their own line."""
    blocks: list[Block] = []
    if sample.expected_answer is not None:
        blocks.append(Block(f"expected answer: {sample.expected_answer}", DIM))
    if not compact:
        blocks.append(Block(""))
    blocks.append(Block("PROMPT", HEADING))
    blocks.append(Block(sample.prompt, indent=1, literal=True))
    if not compact:
        blocks.append(Block(""))
    size = f"{sample.tokens:,} tokens, {len(sample.completion):,} characters"
    blocks.append(Block(f"COMPLETION  {size}", HEADING))
    if sample.thinking and sample.thinking.strip() not in sample.completion:
        blocks.append(Block(sample.thinking, THINKING, indent=1, literal=True))
    blocks += _completion(sample)
    blocks += _tool_calls(sample)
    return blocks


def _completion(sample: Sample) -> list[Block]:
    """The completion with its thinking set apart by style; not a character is left out."""
    text = sample.completion
    end = text.find("</think>")
    if end < 0:
        return [Block(text, indent=1, literal=True)]
    split = end + len("</think>")
    rest = text[split:]
    if rest.startswith("\n"):
        split, rest = split + 1, rest[1:]
    blocks = [Block(text[:split], THINKING, indent=1, literal=True)]
    return [*blocks, Block(rest, indent=1, literal=True)] if rest else blocks


def _tool_calls(sample: Sample) -> list[Block]:
    blocks: list[Block] = []
    for call in sample.tool_calls:
        blocks.append(Block(f"TOOL CALL  {call.name or '?'} ({call.status})", HEADING))
        blocks.append(Block(call.arguments or call.raw_content, indent=1, literal=True))
        if call.error:
            blocks.append(Block(call.error, "$text-error", indent=1))
    return blocks
