// What an address that no page has shows.

import { heading } from "../parts/page.js";
import { empty } from "../parts/states.js";
import { show } from "../dom.js";

export function unknownPage({ root }) {
  show(
    root,
    heading({ title: "No such page" }).element,
    empty("There is nothing at this address", "The sections above lead everywhere; ? lists the keys."),
  );
}
