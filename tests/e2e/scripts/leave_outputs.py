"""Writes outputs at its beginning, and more once it is let go; what it reads of an input spans that, too."""

import errno
import os
import pathlib
import sys
import time

outputs = pathlib.Path(os.environ["OUTPUTS"])
stop = pathlib.Path(sys.argv[sys.argv.index("--output") + 1], "stop")
words = pathlib.Path(os.environ["INPUTS"], "words")
data = (words / "two/lines").open()
first = data.readline()
try:
    (words / "own").write_text("x")
    raise SystemExit("the inputs can be written to")
except OSError as error:
    assert error.errno in (errno.EROFS, errno.EACCES), error
(outputs / "curves").mkdir()
(outputs / "curves/loss.csv").write_text("0,1.0\n")
(outputs / "curves/loss.csv").chmod(0o600)
with stop.with_name("starts").open("a") as file:
    file.write("started\n")
while not stop.exists():
    time.sleep(0.05)
with (outputs / "curves/loss.csv").open("a") as file:
    file.write("1,0.5\n")
(outputs / "read").write_text(first + data.readline())
(outputs / "model.bin").write_bytes(bytes(range(256)) * (80 << 10))
(outputs / "latest").symlink_to("model.bin")
