"""What the scheduler would do on a device: `python -m tools.simulate [--clients 1,4,8,16] [--help]`."""

from tools.simulate.command import app

if __name__ == "__main__":
    app(prog_name="python -m tools.simulate")
