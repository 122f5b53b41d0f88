"""Result objects to text and HTML. A view is described once, as blocks, and drawn twice."""
