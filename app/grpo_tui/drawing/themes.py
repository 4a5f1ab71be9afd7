"""Colours that stay apart for colour-blind eyes: blue and orange instead of green and red."""

from textual.theme import Theme

DARK = Theme(
    name="grpo-dark",
    primary="#5aa9e6",
    secondary="#8d99ae",
    accent="#e0a458",
    warning="#e9c46a",
    error="#f0725c",
    success="#4fb3a5",
    foreground="#d8dee9",
    background="#10141b",
    surface="#151a23",
    panel="#1d2430",
    dark=True,
    variables={
        "footer-key-foreground": "#e0a458",
        "footer-description-foreground": "#aab4c3",
        "footer-background": "#151a23",
        "border": "#5aa9e6",
        "border-blurred": "#2c3646",
    },
)
