"""Will it fit? What a program takes of a simulated card, whose memory that is, and the verdict."""
