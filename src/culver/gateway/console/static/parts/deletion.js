// Deletes a thing with a name, after the name has been typed.

import { remove } from "../api.js";
import { confirmByName } from "./dialog.js";
import { notice } from "./notice.js";

/** what: "topic"; address: where the API has it; text: what is lost; done is called when it has gone. */
export function deleteByName({ what, name, address, text, done }) {
  confirmByName({
    title: `Delete ${name}`,
    text,
    name,
    action: `Delete the ${what}`,
    async act() {
      await remove(address);
      notice(`The ${what} ${name} has been deleted.`);
      done();
    },
  });
}
