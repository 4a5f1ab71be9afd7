"""The bundled demo: a tiny model, a task whose answers can be checked, and settings that fit both.

`task` holds the problems and rewards, `settings` the training settings, `model/` the weights,
`tokenizer` and `warm_start` the code that built `model/`. Only `warm_start` imports mlx.
"""
