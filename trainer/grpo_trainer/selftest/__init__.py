"""`grpo-trainer selftest`: whether a model can be sampled from and trained as a run would.

`command` loads the model and prints the table, `checks` holds one function for each line, `bench`
the rows and the two optimizer steps that the checks look at. Nothing is written.
"""
