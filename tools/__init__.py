"""Scripts that maintainers run and users do not need."""
