#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The examples, by torchrun on two ranks of the host backend."""
from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import harness
import torch
from harness import support

EXAMPLES = support.ROOT / "client" / "examples" / "torch"


def setUpModule() -> None:
    global daemon, scratch
    scratch = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(scratch.cleanup)
    os.environ["TMPDIR"] = scratch.name  # torchrun leaves folders there
    daemon = support.Daemon(devices=2, arena="256M", host_arena="256M").for_module()


def run(program: str, *arguments: str, world: int = 2, **changed: str) -> str:
    environment = {**os.environ, "ZEROD_SOCKET": daemon.socket, "OMP_NUM_THREADS": "1",
                   "PYTHONPATH": str(support.ROOT / "client" / "python"), **changed}
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}",
                           str(EXAMPLES / program), *arguments], env=environment, capture_output=True, text=True,
                          timeout=250)
    if done.returncode:
        raise AssertionError(done.stdout + done.stderr)
    return done.stdout


@unittest.skipIf("ZD_SEVERAL" in os.environ, "torch sees one GPU, and the examples give each rank its own")
class Examples(unittest.TestCase):
    def test_readme(self) -> None:
        """README.md's train.py learns on 1 and 4 ranks with a daemon of its own, and on 2 beside another daemon"""
        with tempfile.TemporaryDirectory() as folder:
            harness.example(folder, "README.md", "zt.summary(model)")
            private = {"ZEROD_SOCKET": "", "ZEROD_PRIVATE": "1", "XDG_RUNTIME_DIR": folder}
            for world, changed in ((1, private), (4, private), (2, {})):
                if not torch.cuda.is_available() or world <= torch.cuda.device_count():
                    output = run(folder + "/train.py", world=world, **changed)
                    losses = [float(each) for each in re.findall("loss ([0-9.]+)", output)]
                    self.assertEqual((len(losses), sorted(losses, reverse=True)), (3, losses), output)
                    self.assertEqual(output.count("\n60 steps, 60 backwards, "), 1, output)

    def test_nanogpt(self) -> None:
        """nanogpt.py learns, in bfloat16, also with weights in host memory"""
        for options in ((), ("--offload", "params")):
            losses = [float(each) for each in re.findall(r"loss ([0-9.]+)", run("nanogpt.py", "--steps", "16", "--bfloat16",
                                                                                *options))]
            self.assertLess(losses[-1], losses[0] - 0.1)

    def test_finetune(self) -> None:
        """finetune.py learns, saves, and goes on"""
        try:
            import transformers  # noqa: F401
        except ImportError:
            self.skipTest("transformers is not installed")
        with tempfile.TemporaryDirectory() as folder:
            first = run("finetune.py", "--steps", "20", "--save", folder + "/checkpoint")
            second = run("finetune.py", "--steps", "10", "--save", folder + "/checkpoint")
        after = re.search(r"step 20, after: (.*)", first)
        before = re.search(r"step 20, before: (.*)", second)
        assert after is not None and before is not None, first + second
        self.assertEqual(after[1], before[1])
        self.assertIn("step 30, after", second)

    def test_rl(self) -> None:
        """rl.py: an engine in another process generates with the weights of each commit"""
        try:
            import transformers  # noqa: F401
        except ImportError:
            self.skipTest("transformers is not installed")
        rewards = [float(each) for each in re.findall(r"reward ([0-9.]+)", run("rl.py", "--updates", "20"))]
        self.assertGreater(rewards[-1], 3 * rewards[0])

    def test_durable(self) -> None:
        """durable.py ends with the bits of a run without kills"""
        environment = {**os.environ, "ZEROD_SOCKET": daemon.socket, "PYTHONPATH": str(support.ROOT / "client" / "python")}
        done = subprocess.run([sys.executable, str(EXAMPLES / "durable.py"), "--steps", "12", "--kills", "2"],
                              env=environment, capture_output=True, text=True, timeout=250)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("equal, bit by bit", done.stdout)
        self.assertEqual(done.stdout.count("SIGKILL"), 2)

    def test_commands(self) -> None:
        """the commands of docs/pytorch.md, pasted into an environment that has torch"""
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
            python = folder + "/bin/python3"
            packages = subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
                                      check=True, capture_output=True, text=True).stdout.strip()
            Path(packages, "torch.pth").write_text(str(Path(torch.__file__).parents[1]) + "\n")
            torchrun = Path(folder, "bin", "torchrun")
            torchrun.write_text(f"#!{python}\nfrom torch.distributed.run import main\nmain()\n")
            torchrun.chmod(0o755)
            environment = {name: value for name, value in os.environ.items() if not name.startswith("ZEROD_")}
            environment.update(PATH=f"{folder}/bin:{os.environ['PATH']}", OMP_NUM_THREADS="1", PYTHON="python3")
            done = subprocess.run([str(support.ROOT / "tests" / "it" / "test_docs.sh"), "docs/pytorch.md"],
                                  env=environment, capture_output=True, text=True, timeout=250)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    support.main()
