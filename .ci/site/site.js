// What scrolls is reached by keys, and the label that opens the list of pages says that it is a button.
for (const element of document.querySelectorAll("pre > code, .content main table")) element.tabIndex = 0;
document.getElementById("mdbook-sidebar-toggle")?.setAttribute("role", "button");
