"""Kinds of state that a notebook holds when its kernel is restarted; each leaves a file that says what became of it."""

# ruff: noqa: E501 - one kind a line is a table

from __future__ import annotations

MODULE = """
import functools
class Keeper:
    def __init__(self, name):
        self.name = name
    def __del__(self):
        open(self.name, "w").write("ended")
keeper = Keeper("module_object.txt")
text = open("module_file.txt", "w"); text.write("0123456789")
@functools.lru_cache
def cached(n):
    return Keeper("module_cache.txt")
cached(1)
"""

KINDS = {
    "text file": "f1 = open('text.txt', 'w'); f1.write('0123456789abcdef')",
    "binary file": "f2 = open('binary.bin', 'wb'); f2.write(b'0123456789abcdef')",
    "read and write": "f3 = open('both.bin', 'w+b'); f3.write(b'0123456789abcdef')",
    "gzip": "import gzip; f4 = gzip.GzipFile('a.gz', 'wb', mtime=0); f4.write(b'hello' * 100)",
    "gzip as text": "import gzip, io; f5 = io.TextIOWrapper(gzip.GzipFile('b.gz', 'wb', mtime=0)); f5.write('hello' * 100)",
    "bz2": "import bz2; f6 = bz2.open('a.bz2', 'wb'); f6.write(b'hello' * 100)",
    "xz": "import lzma; f7 = lzma.open('a.xz', 'wb'); f7.write(b'hello' * 100)",
    "zip archive": "import zipfile; f8 = zipfile.ZipFile('a.zip', 'w'); f8.writestr(zipfile.ZipInfo('x'), 'hello')",
    "csv writer": "import csv; w9 = csv.writer(open('a.csv', 'w')); w9.writerow([1, 2, 3])",
    "file in a list": "held = [open('list.txt', 'w')]; held[0].write('0123456789')",
    "file in a class": "class Holder: file = open('class.txt', 'w')\nHolder.file.write('0123456789')",
    "file in a closure": (
        "def make():\n    inner = open('closure.txt', 'w'); inner.write('0123456789')\n    return lambda: inner\nclosed_over = make()"
    ),
    "file in a cycle": "class Loop: pass\nloop = Loop(); loop.me = loop; loop.file = open('cycle.txt', 'w'); loop.file.write('01234')",
    "__del__": "class D:\n    def __del__(self): open('del.txt', 'w').write('ended')\nd = D()",
    "Out": "class O:\n    def __del__(self): open('out.txt', 'w').write('ended')\nO()",
    "generator": (
        "def g():\n    try:\n        yield 1\n    finally:\n        open('generator.txt', 'w').write('ended')\nit = g(); next(it)"
    ),
    "atexit": "import atexit; atexit.register(lambda: open('atexit.txt', 'w').write('ended'))",
    "finalize": (
        "import weakref\nclass F: pass\nf0 = F(); _ = weakref.finalize(f0, lambda: open('finalize.txt', 'w').write('ended'))"
    ),
    "temporary folder": "import tempfile, os; t0 = tempfile.TemporaryDirectory(dir='.', prefix='gone')",
    "log in memory": (
        "import logging, logging.handlers\n"
        "log = logging.getLogger('mine'); target = logging.FileHandler('log.txt')\n"
        "log.addHandler(logging.handlers.MemoryHandler(1000, target=target)); log.warning('said')"
    ),
    "shelf": "import shelve; s0 = shelve.open('shelf', writeback=True); s0['a'] = [1]; s0['a'].append(2)",
    "thread": (
        "import threading, time\ndef work():\n    time.sleep(1)\n    open('thread.txt', 'w').write('done')\n"
        "threading.Thread(target=work).start()"
    ),
    "pool of threads": (
        "from concurrent.futures import ThreadPoolExecutor\nimport time\npool = ThreadPoolExecutor(1)\n"
        "_ = pool.submit(time.sleep, 0.5); _ = pool.submit(lambda: open('pool.txt', 'w').write('done'))"
    ),
    "child with a pipe": (
        "import subprocess\nchild = subprocess.Popen(['sh', '-c', 'cat > child.txt'], stdin=subprocess.PIPE, start_new_session=True)\n"
        "_ = child.stdin.write(b'0123456789')"
    ),
    "module": "import sys; sys.path.insert(0, '.'); import held_module",
    "error": (
        "class E:\n    def __del__(self): open('error.txt', 'w').write('ended')\n"
        "def fails():\n    kept = E(); 1/0\n"
        "get_ipython().run_cell('fails()');"
    ),
}

COLLECT = """
import hashlib, os, time
time.sleep(0.3)
found = {}
for name in sorted(os.listdir('.')):
    if name.startswith('gone'):
        found['temporary folder left'] = True
    elif os.path.isfile(name) and name != 'held_module.py':
        found[name] = os.path.getsize(name)
print(found)
"""
