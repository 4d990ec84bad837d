"""What would an upgrade of DSPy break? Its users' tests, against the newest DSPy on the index, pre-releases too.

    python benchmarks/newest_dspy.py [VERSION]

The newest (or named) version is installed into a temporary environment before all else; everything else is this one's.
The exit code is the tests': this is no part of the project's verdict, which holds for the pinned versions.
"""

import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ("tests/test_dspy_user.py", "tests/test_dspy_private.py")


def main() -> int:
    """Install, say what was installed, and test."""
    wanted = f"dspy=={sys.argv[1]}" if len(sys.argv) > 1 else "dspy"
    with tempfile.TemporaryDirectory(prefix="newest-dspy-") as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        packages = Path(sysconfig.get_path("purelib", vars={"base": folder, "platbase": folder}))
        (packages / "here.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
        install = [python, "-m", "pip", "install", "--quiet", "--pre", "--upgrade", wanted]
        if code := subprocess.run(install).returncode:
            return code
        subprocess.run([python, "-c", "import dspy; print('DSPy', dspy.__version__, dspy.__file__)"], check=True)
        tests = [name for name in TESTS if (ROOT / name).is_file()]
        return subprocess.run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
