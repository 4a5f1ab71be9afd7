"""The declarations of what a run can be told, by group.

Each group extends the one before it: a msgspec struct cannot have two bases with fields.
"""
