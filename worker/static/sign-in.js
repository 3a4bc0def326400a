// The page that says how to sign in, in the place of the one that was asked for.

import { notePlace } from "./shared/place.js";

notePlace();
