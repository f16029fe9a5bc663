"""Views of a run: the live terminal, plain lines, text and JSON, the HTML report. They read and never write."""
