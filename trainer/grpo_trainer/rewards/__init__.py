"""Reward functions: calling them, running those of files apart, and combining their scores.

| module | owns |
| --- | --- |
| `loading` | the one way in: from files or functions to a scorer ready to score |
| `batch` | what a function is given |
| `calling`, `async_runner` | how it is called and what it may return |
| `types` | scores, errors, the scorer interface, the weighted sum |
| `validation` | what must hold before a run starts |
| `callables` | functions of the running program |
| `files` | `FILE.py[:NAME]` specs and their import |
| `file_scorer`, `process` | the trainer's side of the worker process |
| `worker` | the worker's side |
| `frames` | what the two say to each other |
"""
