"""A completion from the record in the form in which the dashboard shows all completions."""

from grpo_protocol.messages import Generation, ToolCall
from grpo_tui.record.database_rows import GenerationDetail
from grpo_tui.state.samples import Sample, sample_of


def recorded_sample(row: GenerationDetail) -> Sample:
    """`row` with its texts safe to show."""
    event = Generation(
        index=row.group_index,
        prompt=row.prompt,
        completion=row.completion_text,
        reward=row.reward,
        tokens=row.num_tokens,
        reward_details=row.reward_details,
        step=row.step,
        prompt_index=row.batch_index,
        group_index=row.group_index,
        advantage=row.advantage,
        expected_answer=row.expected_answer,
        finish_reason=row.finish_reason,
        thinking=row.thinking,
        tool_calls=[
            ToolCall(
                status=call.status,
                name=call.tool_name or "",
                arguments=call.arguments or "",
                raw_content=call.raw_content,
                error=call.error_message,
            )
            for call in row.tool_calls
        ],
        token_ids=list(row.token_ids),
    )
    return sample_of(event, number=row.id, step=row.step, group_size=None)
