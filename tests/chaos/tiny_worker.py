"""The real worker, whose device can be made to hang."""

from tests.chaos import hang
from workers.__main__ import main

if __name__ == "__main__":
    hang.install()
    main()
