"""The live panel: ipywidgets first, anywidget where the front end proves that it can."""
