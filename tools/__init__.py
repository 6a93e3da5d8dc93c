"""Programs of the checkout, not of the package: they fetch real models, build other people's programs, and measure."""
