"""Will it fit? The memory that a program takes of a simulated card, by kind, and the verdict."""
