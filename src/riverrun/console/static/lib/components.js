// Everything a page usually needs, in one import. Each part documents itself in its own file.

export { Code, Command, CopyButton, copyText, prettyJson } from "./code.js";
export { column, fixed, groupLinks, moment, named, nodeLink, number, opener, topicLink, WholeList } from "./columns.js";
export { Configs } from "./configs.js";
export { ActionDialog, Dialog, DialogError, Menu, openDialog } from "./dialog.js";
export { Badge, Empty, Failure, Loaded, Loading, prose, StaleNote, Status, toast } from "./feedback.js";
export { AreaField, CheckField, Field, SearchField, Segmented, SelectField, TextField, useForm } from "./forms.js";
export { Icon } from "./icons.js";
export { Facts, Meter, Page, Panel, QueryTabs, Tabs, Tile, tile, Verdict } from "./layout.js";
export { ListTable, Pager, Rows, Table } from "./table.js";
