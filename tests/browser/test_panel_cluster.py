"""The panel of a cluster in real JupyterLab: groups by host, a host that is lost, 64 hosts folded."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("ipyparallel")

START = """import os
os.environ["CUDA_MAGIC_PRACTICE"] = "1"
import ipyparallel as ipp
cluster = ipp.Cluster(profile_dir={folder!r}, cluster_id="browser", log_level=40)
cluster.start_controller_sync()
for host in ("node1", "node2"):
    cluster.start_engines_sync(1, environment={{"CUDA_MAGIC_PRACTICE_HOST": host}})
rc = cluster.connect_client_sync()
rc.wait_for_engines(2, timeout=60)
code = "import builtins; from cuda_magic.testing import gpu; builtins.g = gpu(['24 GiB'] * 4);"
code += "builtins.held = [g.empty('%d GiB' % (3 * i), i) for i in range(1, 4)]"
for i in rc.ids:
    rc[i].apply_sync(exec, code, {{}})
%load_ext cuda_magic
print(rc[0].apply_sync(os.getpid))"""
FILE = "{folder}/security/ipcontroller-browser-client.json"


def words(page, selector):
    return page.js(f"() => [...document.querySelectorAll('{selector}')].map(e => e.innerText)")


def test_devices_by_host(lab, open_page, tmp_path):
    """Two hosts of four cards: a group each, folded by a click while a cell runs; a killed engine is named."""
    from axe_playwright_python.sync_playwright import Axe

    folder = str(tmp_path / "profile_browser")
    show = f"%gpu_mem --cluster {FILE.format(folder=folder)} --interval 0.5\nimport time; time.sleep(25)"
    cells = [START.format(folder=folder), show, "cluster.stop_cluster_sync()"]
    page = open_page(lab, "cluster.ipynb", cells, size=(1250, 900))
    try:
        pid = int(page.execute(0, seconds=90).split()[-1])
        page.run(1)
        count = "() => document.querySelectorAll('.cmg-row').length"
        assert page.until(lambda: page.js(count) == 10, 15), page.console
        assert words(page, ".cmg-host .cmg-index") == ["node1", "node2"]
        assert "2 hosts, 8 devices" in page.page.inner_text(".cmg-total")
        assert words(page, ".cmg-host .cmg-model") == ["4 × Practice GPU 24 GiB"] * 2
        assert page.page.inner_text(".cmg-badge") == "PRACTICE"
        lines = page.js("() => [...document.querySelectorAll('.cmg-spark-util')].map(p => p.getAttribute('d'))")
        heights = {pair.split()[1] for line in lines for pair in line.replace("L", "M").split("M") if pair}
        assert heights == {"23.0"}, heights  # practice cards do not work: flat on the ground
        if folder_ := os.environ.get("SCREENSHOTS"):
            page.page.locator(".cmg").screenshot(path=f"{folder_}/cluster.png")
        found = Axe().run(page.page, context=".cmg").response["violations"]
        assert not found, [(v["id"], [n["html"][:120] for n in v["nodes"][:3]]) for v in found]
        page.page.locator(".cmg-host .cmg-name").first.click()
        assert page.until(lambda: page.js(count) == 6, 3)
        assert page.page.locator(".cmg-host .cmg-name").first.get_attribute("aria-expanded") == "false"
        page.page.fill(".cmg-filter", "node2 gpu 3")
        assert page.until(lambda: page.js(count) == 2, 3)
        page.page.fill(".cmg-filter", "")
        page.page.locator(".cmg-host .cmg-name").first.click()
        assert page.prompts()[1] == "[*]:"
        os.kill(pid, 9)
        said = lambda: [t for t in words(page, ".cmg-host .cmg-error") if t]  # noqa: E731
        assert page.until(lambda: said() and "it has ended" in said()[0], 15), said()
        assert page.js("() => document.querySelectorAll('.cmg-stale').length") == 5
        page.sleep(1)
        if folder_:
            page.page.locator(".cmg").screenshot(path=f"{folder_}/cluster_lost.png")
        page.page.locator(".cmg-pause").click()  # the other host goes on
        assert not page.has(".jupyter-widgets-error-widget")
    finally:
        page.js("() => {window.jupyterapp.commands.execute('notebook:interrupt-kernel');}")
        page.finished(1, 30)
        page.execute(2, seconds=60)
