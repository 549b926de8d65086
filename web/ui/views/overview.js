import { html } from '../vendor/preact.js';
import { Heading, State } from '../ui.js';
import { t } from '../words.js';

export const title = 'Overview';

export default function View() {
  return html`<${Heading} title=${t('Overview')} /><${State} status="loading" />`;
}
