"""Django finds its commands here."""
